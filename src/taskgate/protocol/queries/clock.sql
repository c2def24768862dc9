-- The server's clock, the one that decides leases.
SELECT clock_timestamp() AS now
