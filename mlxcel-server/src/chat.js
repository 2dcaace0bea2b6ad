"use strict";

const byId = (id) => document.getElementById(id);
const messages = [];
let running = null;

// A server with a key wants it from this page too: http://…/#key=KEY keeps it out of requests for the page and of logs.
const key = new URLSearchParams(location.hash.slice(1)).get("key");
const headers = key ? { Authorization: `Bearer ${key}` } : {};

function show(role, text) {
  const element = document.createElement("div");
  element.className = `message ${role}`;
  element.textContent = text;
  byId("messages").append(element);
  element.scrollIntoView({ block: "end" });
  return element;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

async function answer() {
  running = new AbortController();
  byId("send").textContent = "Stop";
  const element = show("assistant", "");
  let text = "";
  let reasoning = null;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { ...headers, "Content-Type": "application/json" },
      body: JSON.stringify({
        messages,
        temperature: Number(byId("temperature").value),
        stream: true,
        stream_options: { include_usage: true },
      }),
      signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const start = performance.now();
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      for (const choice of event.choices) {
        // It is shown, and is no part of the next turn.
        if (choice.delta.reasoning_content) {
          reasoning ??= show("reasoning", "");
          element.before(reasoning);
          reasoning.textContent += choice.delta.reasoning_content;
        }
        text += choice.delta.content ?? "";
        element.textContent = text;
        element.scrollIntoView({ block: "end" });
      }
      if (event.usage) {
        const seconds = (performance.now() - start) / 1000;
        byId("status").textContent =
          `${event.usage.completion_tokens} tokens, ${(event.usage.completion_tokens / seconds).toFixed(1)} a second`;
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  }
  if (text) messages.push({ role: "assistant", content: text });
  running = null;
  byId("send").textContent = "Send";
  document.body.dataset.answers = messages.filter((message) => message.role === "assistant").length;
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const text = byId("text").value.trim();
  if (!text) return;
  byId("text").value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  answer();
});

byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("form").requestSubmit();
  }
});

byId("clear").addEventListener("click", () => {
  if (running) running.abort();
  messages.length = 0;
  byId("messages").replaceChildren();
  byId("status").textContent = "";
});

fetch("v1/models", { headers })
  .then((response) => response.json())
  .then((models) => { byId("model").textContent = models.data[0].id; })
  .catch(() => {});
