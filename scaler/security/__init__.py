"""Credentials of peers, the keys directory of servers, and the list of the keys that they admit."""

CREDENTIALS_VARIABLE = "SCALER_CREDENTIALS"
INSECURE_VARIABLE = "SCALER_INSECURE_NO_AUTH"
