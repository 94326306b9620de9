"""Credentials of peers, the keys directory of servers, and the allow-list."""

CREDENTIALS_VARIABLE = "SCALER_CREDENTIALS"
INSECURE_VARIABLE = "SCALER_INSECURE_NO_AUTH"
