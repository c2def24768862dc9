-- Unfinished tasks by type and status, of one tenant ($1) or all (NULL).
SELECT t.task_type, t.status, count(*) AS tasks FROM tasks t
WHERE (t.status = 'pending' AND t.task_type IS NOT NULL AND t.request IS NOT NULL OR t.status = 'running' AND t.request IS NOT NULL)
  AND ($1::text IS NULL OR t.tenant = $1::text)
GROUP BY 1, 2 ORDER BY 1, 2
