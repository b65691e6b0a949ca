"""`longhaul board`: runs shown live in a browser, and asked for changes by who holds the token."""
