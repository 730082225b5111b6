"""The paper's figures, drawn from recorded runs: `catalogue.FIGURES` names them, `plan` lists their runs."""
