"""A whole run as data: `schema.Recipe`; each method of the paper as a function that makes one; all by name in `catalogue`."""
