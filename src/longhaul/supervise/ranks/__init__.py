"""Workers as processes: started together, watched, ended; what each does, and which lags."""
