// Intents to buy, kept in this browser for all its tabs.

const hexadecimal = (byte) => byte.toString(16).padStart(2, "0");
export const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), hexadecimal).join("");

// Where intents are kept. Not in localStorage: what one tab writes there reaches the process of another tab a moment
// later, even under a lock, so that two tabs pressed at once would buy twice. Transactions of IndexedDB that write run
// one after another, in all tabs.
const database = new Promise((resolve, reject) => {
  const request = indexedDB.open("last-unit", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("intents");
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
database.catch(() => {}); // Each caller handles the error; this only prevents an unhandled-rejection warning.
export const tabs = new BroadcastChannel("last-unit");

// Replace what is kept under a name by what `change` makes of it, in one transaction. Return what is kept then.
export async function keep(name, change) {
  const transaction = (await database).transaction("intents", "readwrite");
  const store = transaction.objectStore("intents");
  return new Promise((resolve, reject) => {
    let kept = null;
    const found = store.get(name);
    found.onsuccess = () => {
      kept = change(found.result ?? null);
      if (kept && kept !== found.result) store.put(kept, name);
    };
    transaction.oncomplete = () => resolve(kept);
    transaction.onabort = () => reject(transaction.error);
  });
}
