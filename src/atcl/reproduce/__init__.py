"""The paper's tables and figures: what is published, which runs they need, where those are carried out, what they show."""
