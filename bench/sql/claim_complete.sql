-- What a worker asks of the database, and nothing else: claim a batch, complete it, results kept.
SELECT array_agg(task_id) FILTER (WHERE task_id IS NOT NULL) AS ids,
       array_agg(token) FILTER (WHERE token IS NOT NULL) AS tokens, count(token) AS n
FROM taskgate.claim('pgbench-' || :client_id::text, :batch::integer, '{}', '60 seconds', '{noop}', 65536) \gset
\if :n > 0
SELECT count(*) FROM taskgate.complete(:ids::text[], :tokens::bigint[], array_fill('null'::text, ARRAY[:n::integer]));
\endif
