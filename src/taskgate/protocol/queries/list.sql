-- A page of tasks, newest first. $1 tenant (NULL: all) · $2 status · $3 type · $4 created from · $5 created before
-- · $6 below this seq (the cursor) · $7 how many · $8 with bodies. Walks one index a tenant.
WITH RECURSIVE tenants AS (
    (SELECT t.tenant FROM tasks t WHERE $1::text IS NULL ORDER BY t.tenant LIMIT 1)
    UNION ALL
    SELECT (SELECT t.tenant FROM tasks t WHERE t.tenant > tenants.tenant ORDER BY t.tenant LIMIT 1)
    FROM tenants WHERE tenants.tenant IS NOT NULL
), wanted AS (
    SELECT $1::text AS tenant WHERE $1::text IS NOT NULL
    UNION ALL
    SELECT tenants.tenant FROM tenants WHERE tenants.tenant IS NOT NULL
)
SELECT page.seq, page.task_id, page.status, page.task_type, page.error, page.error_code, page.attempts, page.priority,
       page.tenant, readable(page.created_at) AS created_at, readable(page.updated_at) AS updated_at,
       readable(page.run_at) AS run_at, readable(page.started_at) AS started_at,
       readable(page.finished_at) AS finished_at, page.worker_id,
       CASE WHEN $8::boolean THEN coalesce(page.request_raw::text, page.request::text) END AS request,
       CASE WHEN $8::boolean THEN page.result::text END AS result
FROM wanted CROSS JOIN LATERAL (
    SELECT t.* FROM tasks t
    WHERE t.tenant = wanted.tenant AND t.seq < coalesce($6::bigint, 9223372036854775807)
      AND ($2::text IS NULL OR t.status || '' = $2::text)
      AND ($3::text IS NULL OR t.task_type || '' = $3::text)
      AND ($4::timestamptz IS NULL OR t.created_at >= $4::timestamptz)
      AND ($5::timestamptz IS NULL OR t.created_at < $5::timestamptz)
    ORDER BY t.seq DESC LIMIT $7::integer
) AS page
ORDER BY page.seq DESC LIMIT $7::integer
