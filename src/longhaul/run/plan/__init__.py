"""Wiring of `longhaul plan`: recipe, device, calibration and the arithmetic of `plan/`."""
