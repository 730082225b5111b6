"""Adversarial perturbations: the attack (`pgd`), its norms and starts (`norms`), its settings (`threat`)."""
