// Intents (started purchases with their idempotency keys), stored in this browser for all its tabs.

const hexadecimal = (byte) => byte.toString(16).padStart(2, "0");
export const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), hexadecimal).join("");

// Store intents in IndexedDB, because its write transactions run one after another, in all tabs together. With
// localStorage, a tab sees the change of another tab only a moment later, even under a lock. So a buyer who presses Buy
// in two tabs at once would buy twice.
const database = new Promise((resolve, reject) => {
  const request = indexedDB.open("last-unit", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("intents");
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
database.catch(() => {}); // Each caller handles the error; this only prevents an unhandled-rejection warning.
export const tabs = new BroadcastChannel("last-unit");

// Read the intent with this name, and store the result of `change(intent)`, in one transaction. Return the result.
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
