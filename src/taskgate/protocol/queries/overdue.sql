-- Running tasks whose lease is over.
SELECT count(*) AS overdue, extract(epoch FROM clock_timestamp() - min(locked_until))::double precision AS longest_seconds
FROM tasks t WHERE t.status = 'running' AND t.request IS NOT NULL AND t.locked_until < clock_timestamp()
