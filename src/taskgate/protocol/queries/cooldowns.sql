-- What cools down, and for how long: nothing of it starts before.
SELECT c.scope, c.name, extract(epoch FROM max(c.until) - clock_timestamp())::double precision AS seconds,
       (array_agg(c.reason ORDER BY c.until DESC))[1] AS reason
FROM cooldowns c WHERE c.until > clock_timestamp()
GROUP BY c.scope, c.name ORDER BY c.scope, c.name
