"""What every API of taskgate must answer, whatever it is written in: cases in JSON, run against a base URL."""
