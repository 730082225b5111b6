"""Adversarial perturbations: `pgd.pgd` is the one ascent; norms, starts, and what an attack may do (`threat`)."""
