"""PFedCDP (Shadin et al.): clusters of sites by network, personal coordinates of bodies, and a distilled student."""
