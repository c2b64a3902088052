/** Serves the built UI over the mock author, to look at it: `npm run build && npm run mock [port]`. */
import { startMock } from "./server.mjs";

const mock = await startMock({ port: Number(process.argv[2] ?? 0) });
console.log(`${mock.origin}/  (password: secret)`);
