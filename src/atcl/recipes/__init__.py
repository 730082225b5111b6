"""Recipes: the settings of a whole run (`schema.Recipe`), the paper's methods, and all recipes by name."""
