"""Programs about models that compute on one device and live on another."""
