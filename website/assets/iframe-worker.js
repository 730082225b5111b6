// Browsers give no worker to a page that was opened from the disk. There the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.inner = new Promise((ready, failed) => {
        this.frame.onload = () => {
          const inner = this.frame.contentWindow;
          const script = inner.document.createElement("script");
          // inside, the script believes that it is a worker: what it posts goes to the page
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          script.src = new URL(url, document.baseURI);
          script.onload = () => ready(inner);
          script.onerror = failed;
          inner.document.body.append(script);
        };
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.inner.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
