"""Fakes and simulations for tests of the platform and of programs that use it."""
