"""Credentials of peers, the keys directory of servers, and the list of the keys that they admit."""
