-- A UUIDv7 (RFC 9562, 5.7) as text: time-ordered, so that inserts touch one end of the key's index.
-- PostgreSQL 18 has its own; this one serves 15 to 17 as well.
CREATE OR REPLACE FUNCTION new_task_id() RETURNS text
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(
        set_byte(
            set_byte(
                overlay(uuid_send(gen_random_uuid()) PLACING
                        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
                6, (get_byte(uuid_send(gen_random_uuid()), 6) & 15) | 112),
            8, (get_byte(uuid_send(gen_random_uuid()), 8) & 63) | 128),
        'hex')::uuid::text
$$;
