"""`python -m benchmarks.divergence_lab`."""

from benchmarks.divergence_lab.lab import main

if __name__ == "__main__":
    main()
