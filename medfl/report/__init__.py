"""What people look at: tables, pictures and pages made from run folders. Nothing here computes or changes a run."""
