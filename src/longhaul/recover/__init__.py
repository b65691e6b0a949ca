"""Decides what to do about findings: pure policy, with budgets, prices and reasons."""
