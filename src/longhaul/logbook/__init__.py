"""What happened to a run and who decided it: journal, ledger, segments, lease, requests, SQL."""
