// Runs the public HTTP cache tests (npm package `http-cache-tests`) against a cache, and prints the results by group.
//
//   node scripts/http_cache_tests.mjs PACKAGE --origin PORT           serves the origin of the tests
//   node scripts/http_cache_tests.mjs PACKAGE --base URL [options]    runs the tests against the cache at URL
//
// PACKAGE is the folder that scripts/http_cache_package.sh prints. Options:
//   --short         only tests without pauses (a few seconds)
//   --id ID         one test, with its requests and responses
//   --failed        also print each failed test with its reason
//   --known FILE    a list of tests that may fail; another failed required or optimal test is exit code 1
//   --json FILE     write the results
//
// The paths of the tests have no extension, and a dispatcher stores files. Every path gets one here: the client, the
// origin and the tests are those of the package.

import fs from 'node:fs'
import path from 'node:path'
import process from 'node:process'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const [folder, ...rest] = process.argv.slice(2)
const options = {}
for (let index = 0; index < rest.length; index += 1) {
  const name = rest[index].replace(/^--/, '')
  options[name] = ['short', 'failed'].includes(name) ? true : rest[++index]
}
const load = file => import(pathToFileURL(path.join(folder, file)).href)

if (options.origin) {
  process.env.npm_config_protocol = 'http'
  process.env.npm_config_port = options.origin
  process.env.npm_config_pidfile = '/dev/null'
  // Files that tests name are below the package.
  process.chdir(folder)
  await load('server/server.mjs')
} else {
  await runTests()
}

// Gives the paths of a test an extension. Names in `Location` are relative to the path of the request.
function withExtensions (test) {
  for (const request of test.requests) {
    request.filename = request.filename ? `page.html/${request.filename}.html` : 'page.html'
    if (request.magic_locations) {
      for (const header of request.response_headers ?? []) {
        const isLocation = ['location', 'content-location'].includes(header[0].toLowerCase())
        if (isLocation && header[1]) header[1] += '.html'
      }
    }
  }
  return test
}

async function runTests () {
  const { runTests, getResults } = await load('client/runner.mjs')
  const suites = (await load('tests/index.mjs')).default
  suites.push((await load('tests/surrogate-control.mjs')).default)
  const fetch = createRequire(path.join(path.resolve(folder), 'package.json'))('node-fetch')
  const isWanted = test => {
    if (test.browser_only) return false
    if (options.id) return test.id === options.id
    return !options.short || !test.requests.some(request => 'pause_after' in request)
  }
  // Suites share request objects, and each may get its extension only once.
  const wanted = suites.map(suite => ({
    ...suite,
    tests: suite.tests.filter(isWanted).map(test => withExtensions(structuredClone(test)))
  }))
  if (options.id) wanted.forEach(suite => suite.tests.forEach(test => { test.dump = true }))
  await runTests(wanted, fetch, false, options.base, 25)
  const results = getResults()
  if (options.json) fs.writeFileSync(options.json, JSON.stringify(results, null, 2))
  process.exitCode = report(wanted, results)
  // Idle connections would keep the process alive.
  process.exit()
}

function report (suites, results) {
  const known = new Set(options.known
    ? fs.readFileSync(options.known, 'utf8').split('\n').map(line => line.split(/\s/)[0])
    : [])
  const totals = {}
  let unexpected = 0
  for (const suite of suites) {
    const counts = {}
    for (const test of suite.tests) {
      const kind = test.kind ?? 'required'
      const result = results[test.id]
      const isPassed = result === true
      for (const count of [counts[kind] ??= [0, 0], totals[kind] ??= [0, 0]]) {
        count[0] += isPassed ? 1 : 0
        count[1] += 1
      }
      if (isPassed || kind === 'check') continue
      if (!known.has(test.id)) unexpected += 1
      if (options.failed) console.log(`failed ${kind} ${test.id}: ${result?.join(': ')}`)
    }
    const text = Object.entries(counts).map(([kind, count]) => `${kind} ${count[0]}/${count[1]}`)
    if (text.length) console.log(`${suite.id}: ${text.join(', ')}`)
  }
  const text = Object.entries(totals).map(([kind, count]) => `${kind} ${count[0]}/${count[1]}`)
  console.log(`total: ${text.join(', ')}`)
  if (options.known && unexpected) {
    console.log(`${unexpected} tests failed that are not in ${options.known}`)
    return 1
  }
  return 0
}
