"""What tests of the platform, and of programs that use it, need: fakes and simulations."""
