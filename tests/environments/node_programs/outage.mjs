// Submits tasks that wait for a file, so that the test can break what it wants meanwhile, and prints their values.

import { Client } from "./scaler_client.mjs";

const [address, credentials, file] = process.argv.slice(2);
const client = await Client.connect(address, { credentials });
const ended = client.submit("math:sqrt", [16]);
await ended;
const many = Array.from({ length: 20_000 }, (_, index) => index);
const waiting = Array.from({ length: 8 }, (_, index) => client.submit("gate:passed", [file, index]));
const last = client.submit("gate:passed", [file, "last"]);
const large = client.submit("gate:passed", [file, many]);
const sum = client.submit("gate:added", [ended, ...waiting]);
const cancelled = client.submit("gate:passed", ["never", 0]);
client.cancel(cancelled);
console.log("submitted");
console.log(JSON.stringify(await Promise.all(waiting)), await last, (await large).length, await sum);
console.log(await cancelled.result.catch((error) => error.outcome));
console.log(await client.submit("math:factorial", [5], {}, { retries: 0 }));
await client.close();
