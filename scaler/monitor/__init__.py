"""What goes on in a cluster, for people: one model that folds what the scheduler tells, and the views that read it."""
