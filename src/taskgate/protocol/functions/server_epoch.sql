-- Remembers which run of the server this is. Leases were given by the clock and the memory of the run before:
-- after a start or a promotion, counted from the first call that notices it, their holders get one lease to
-- renew before anything is recovered.
CREATE OR REPLACE FUNCTION note_server_epoch(p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    identity_now text := pg_postmaster_start_time()::text || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
    epoch server_epoch;
BEGIN
    SELECT * INTO epoch FROM server_epoch;
    IF epoch.identity IS DISTINCT FROM identity_now THEN
        epoch.seen_at := p_now;
        UPDATE server_epoch SET identity = identity_now, seen_at = p_now;
        -- tokens given out last may have been lost with a tail of the log: none shall come twice
        PERFORM setval('claim_token_seq', nextval('claim_token_seq') + 1000000);
    END IF;
    RETURN epoch.seen_at;
END $$;
