"""The battery of checks: each rank measures, rank 0 judges. Measuring decides nothing; judging is
pure, and torch is imported only where a device or a link is measured.
"""
