"""What turns docs/ into a site: `mkdocs.yml` names it."""
