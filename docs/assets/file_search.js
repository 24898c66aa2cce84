// The search of the site runs in a worker, which browsers refuse to pages that are opened as files. For such pages the same
// script runs in a hidden frame, so that a copy of the site can be searched without a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      this.ready = new Promise((resolve) => {
        const script = inner.document.createElement("script");
        script.src = address;
        script.onload = () => resolve(inner);
        inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        inner.document.body.appendChild(script);
      });
    }
    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
