-- Which of these flows have a task that may start now, as far as no lock tells otherwise; false for those not asked for.
-- For claim: a flow that has run dry stays in the directory for a while, and must not use up what is to be shared out.
CREATE OR REPLACE FUNCTION have_tasks(p_flows bigint[], p_asked boolean[], p_now timestamptz, p_ledger claim_ledger) RETURNS boolean[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
        SELECT array_agg(a.asked AND (ready.seq IS NOT NULL OR due.seq IS NOT NULL) ORDER BY a.ord)
        FROM unnest(p_flows, p_asked) WITH ORDINALITY AS a (id, asked, ord)
        CROSS JOIN LATERAL (SELECT array_position(p_ledger.flows, a.id)) AS m (place)
        LEFT JOIN LATERAL (
            SELECT t.seq FROM tasks t
            WHERE a.asked AND t.status = 'pending' AND t.run_at IS NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = a.id
              AND t.seq >= coalesce(greatest(p_ledger.marks[m.place], -9223372036854775000) - 500, -9223372036854775808)
              AND (t.start_before >= p_now) IS NOT FALSE
            ORDER BY t.seq LIMIT 1
        ) AS ready ON true
        LEFT JOIN LATERAL (
            SELECT t.seq FROM tasks t
            WHERE a.asked AND ready.seq IS NULL
              AND t.status = 'pending' AND t.run_at IS NOT NULL AND num_nulls(t.task_type, t.request) = 0 AND t.flow = a.id
              AND t.run_at >= coalesce(p_ledger.due_marks[m.place] - interval '5 seconds', '-infinity') AND t.run_at <= p_now
              AND (t.start_before >= p_now) IS NOT FALSE
            ORDER BY t.run_at LIMIT 1
        ) AS due ON true
    );
END $$;
