-- Remembers which run of the server this is. Leases were given by the clock and the memory of the run before:
-- after a start or a promotion their holders get one lease to renew before anything is recovered.
CREATE OR REPLACE FUNCTION note_server_epoch(p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    timeline text := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    identity_now text := pg_postmaster_start_time()::text || '/' || timeline;
    epoch server_epoch;
BEGIN
    SELECT * INTO epoch FROM server_epoch;
    IF epoch.identity IS DISTINCT FROM identity_now THEN
        epoch.seen_at := CASE WHEN right(epoch.identity, 9) = '/' || timeline THEN pg_postmaster_start_time()
                              ELSE p_now END;
        UPDATE server_epoch SET identity = identity_now, seen_at = epoch.seen_at;
    END IF;
    RETURN epoch.seen_at;
END $$;
