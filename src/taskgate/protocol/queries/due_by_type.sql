-- Pending tasks whose time has come, by type: how many, and for how long the oldest has waited.
SELECT t.task_type, count(*) AS tasks,
       extract(epoch FROM clock_timestamp() - min(greatest(t.created_at, t.run_at)))::double precision AS oldest_seconds
FROM tasks t
WHERE t.status = 'pending' AND t.task_type IS NOT NULL AND t.request IS NOT NULL AND (t.run_at IS NULL OR t.run_at <= clock_timestamp())
GROUP BY 1 ORDER BY 3 DESC
