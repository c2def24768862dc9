-- Locks up to p_quotas[i] tasks of the flow p_flows[i] for each i, and answers where the rows are, in order: within a
-- flow those that fell due (retries, delayed ones) by run_at, then arrivals by seq; rows that others hold are skipped.
-- p_skips: how many of each this transaction has picked before. The other answers have an element a flow: how many were found, the first seq and run_at of them.
-- Reading begins at the marks of the ledger, less some slack for writers that commit late. Caller: claim, under the lock.
CREATE OR REPLACE FUNCTION pick(
    p_flows bigint[], p_quotas integer[], p_skips integer[], p_now timestamptz, p_ledger claim_ledger,
    OUT rows_at tid[], OUT counts integer[], OUT seqs bigint[], OUT dues timestamptz[]
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    seq_slack constant integer := 500;
    due_slack constant interval := '5 seconds';
    place integer;
    flow_id bigint;
    quota integer;
    skip integer;
    seq_from bigint;
    due_from timestamptz;
BEGIN
    IF cardinality(p_flows) = 1 THEN
        flow_id := p_flows[1];
        quota := p_quotas[1];
        skip := p_skips[1];
        place := array_position(p_ledger.flows, flow_id);
        seq_from := coalesce(greatest(p_ledger.marks[place], -9223372036854775000) - seq_slack, -9223372036854775808);
        due_from := coalesce(p_ledger.due_marks[place] - due_slack, '-infinity');
        SELECT array_agg(x.ctid), ARRAY[count(*)::integer], ARRAY[min(x.seq) FILTER (WHERE x.run_at IS NULL)], ARRAY[min(x.run_at)]
        INTO rows_at, counts, seqs, dues
        FROM (
            SELECT * FROM (
                SELECT t.ctid, t.seq, t.run_at FROM tasks t
                WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0
                  AND t.flow = flow_id AND t.run_at >= due_from AND t.run_at <= p_now AND (t.start_before >= p_now) IS NOT FALSE
                ORDER BY t.run_at, t.seq LIMIT quota + skip FOR NO KEY UPDATE SKIP LOCKED
            ) AS due
            UNION ALL
            SELECT * FROM (
                SELECT t.ctid, t.seq, t.run_at FROM tasks t
                WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0
                  AND t.flow = flow_id AND t.seq >= seq_from AND (t.start_before >= p_now) IS NOT FALSE
                ORDER BY t.seq LIMIT quota + skip FOR NO KEY UPDATE SKIP LOCKED
            ) AS ready
            LIMIT quota OFFSET skip
        ) AS x;
        RETURN;
    END IF;
    WITH picked AS MATERIALIZED (
        SELECT f.ord, x.ctid AS at, x.seq, x.run_at
        FROM unnest(p_flows, p_quotas, p_skips) WITH ORDINALITY AS f (id, quota, skip, ord)
        CROSS JOIN LATERAL (SELECT array_position(p_ledger.flows, f.id)) AS m (place)
        CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT t.ctid, t.seq, t.run_at FROM tasks t
                WHERE t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0
                  AND t.flow = f.id AND t.run_at >= coalesce(p_ledger.due_marks[m.place] - due_slack, '-infinity')
                  AND t.run_at <= p_now AND (t.start_before >= p_now) IS NOT FALSE
                ORDER BY t.run_at, t.seq LIMIT f.quota + f.skip FOR NO KEY UPDATE SKIP LOCKED
            ) AS due
            UNION ALL
            SELECT * FROM (
                SELECT t.ctid, t.seq, t.run_at FROM tasks t
                WHERE t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0
                  AND t.flow = f.id
                  AND t.seq >= coalesce(greatest(p_ledger.marks[m.place], -9223372036854775000) - seq_slack, -9223372036854775808)
                  AND (t.start_before >= p_now) IS NOT FALSE
                ORDER BY t.seq LIMIT f.quota + f.skip FOR NO KEY UPDATE SKIP LOCKED
            ) AS ready
            LIMIT f.quota OFFSET f.skip  -- rows that we have locked ourselves are not skipped
        ) AS x
    )
    SELECT (SELECT array_agg(p.at) FROM picked p), array_agg(coalesce(g.n, 0) ORDER BY f.ord),
           array_agg(g.seq ORDER BY f.ord), array_agg(g.due ORDER BY f.ord)
    INTO rows_at, counts, seqs, dues
    FROM unnest(p_flows) WITH ORDINALITY AS f (id, ord)
    LEFT JOIN (
        SELECT p.ord, count(*)::integer AS n, min(p.seq) FILTER (WHERE p.run_at IS NULL) AS seq, min(p.run_at) AS due
        FROM picked p GROUP BY p.ord
    ) AS g ON g.ord = f.ord;
END $$;
