-- What holds for the whole fleet.
SELECT max_concurrent, max_attempts, extract(epoch FROM max_throttle)::double precision AS max_throttle_seconds,
       extract(epoch FROM result_ttl)::double precision AS result_ttl_seconds,
       extract(epoch FROM ageing)::double precision AS ageing_seconds, configured::text AS configured, updated_at
FROM settings
