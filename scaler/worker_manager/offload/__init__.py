"""A worker whose tasks run elsewhere: an ordinary local agent in front of an executor such as a batch service."""
