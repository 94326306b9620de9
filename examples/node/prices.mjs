// Prices options in Python, from JavaScript.
//
//     node prices.mjs tcp://127.0.0.1:8516 node.credentials
//
// README.md explains how to start a cluster for it.

import { Client } from "./scaler_client.mjs";

const [address = "tcp://127.0.0.1:8516", credentials] = process.argv.slice(2);
const client = await Client.connect(address, { credentials });

console.log("20! =", await client.submit("math:factorial", [20]));

const prices = await client.map("pricing:call_price", [90, 100, 110]);
console.log("prices:", prices.map((price) => price.toFixed(2)).join(" "));

// A task can use other tasks' results, which are not sent through this program.
const tasks = [90, 100, 110].map((strike) => client.submit("pricing:call_price", [strike]));
const best = client.submit("builtins:max", tasks);
console.log("the highest:", (await best).toFixed(2));

// Large arguments and results are sent through the object storage.
const many = Array.from({ length: 100_000 }, (_, index) => index);
const reversed = await client.submit("builtins:sorted", [many], { reverse: true });
console.log("sorted:", reversed.length, "numbers, the first is", reversed[0]);

try {
  await client.submit("pricing:call_price", [-1]);
} catch (error) {
  console.log("an error of Python:", error.message);
}

await client.close();
