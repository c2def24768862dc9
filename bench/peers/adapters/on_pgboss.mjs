// pg-boss: a partition of its own, whole batches fetched and completed in one statement, refetched at once while full.
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { PgBoss } from 'pg-boss'

const count = Number(process.env.PEER_COUNT ?? 0)
const chunk = Number(process.env.PEER_CHUNK ?? 1000)
const batch = Number(process.env.PEER_SLOTS ?? 1000)
const pause = Number(process.env.PEER_PAUSE ?? 0.02) * 1000
const latencies = process.env.PEER_LATENCIES === '1'
const verb = process.argv[2]

const now = () => (performance.timeOrigin + performance.now()) / 1000
const say = (fields) => process.stdout.write(JSON.stringify(fields) + '\n')

const boss = new PgBoss({
  connectionString: process.env.PEER_DSN,
  useListenNotify: latencies,
  supervise: verb === 'work',
  schedule: false
})
boss.on('error', (error) => process.stderr.write(String(error) + '\n'))
await boss.start()

async function submit (milliseconds) {
  const begun = now()
  for (let i = 0; i < count; i++) {
    await boss.send('noop', { sent: now() })
    if (milliseconds) await sleep(milliseconds)
  }
  say({ event: 'submitted', seconds: now() - begun })
}

async function bulk () {
  const begun = now()
  for (let start = 0; start < count; start += chunk) {
    const size = Math.min(chunk, count - start)
    await boss.insert('noop', Array.from({ length: size }, () => ({ data: { sent: now() } })))
  }
  say({ event: 'submitted', seconds: now() - begun })
}

async function work () {
  let ran = 0
  process.once('SIGTERM', async () => { await boss.stop({ graceful: true, timeout: 5000 }); process.exit(0) })
  await boss.work('noop', { batchSize: batch, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }, async (jobs) => {
    for (const job of jobs) {
      const at = now()
      ran += 1
      if (latencies) say({ event: 'started', ms: (at - job.data.sent) * 1000 })
      if (ran === 1) say({ event: 'first', at })
      if (ran >= count) say({ event: 'ran', at, jobs: ran })
    }
  })
}

if (verb === 'setup') await boss.createQueue('noop', { partition: true, notify: process.env.PEER_NOTIFY === '1' })
else if (verb === 'submit') await submit(0)
else if (verb === 'trickle') await submit(pause)
else if (verb === 'bulk') await bulk()
else await work()
if (verb !== 'work') await boss.stop({ graceful: false })
