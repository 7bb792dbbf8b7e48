// Search runs in a worker, which browsers refuse on pages opened from disk. There, the same script runs in a hidden
// frame, which takes and gives the same messages.
if (location.protocol === "file:") {
  window.Worker = class FrameWorker extends EventTarget {
    constructor(address) {
      super()
      this.window = new Promise((ready) => {
        const frame = document.createElement("iframe")
        frame.hidden = true
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = new URL(address, location.href)
          script.addEventListener("load", () => ready(inside))
          inside.document.body.append(script)
        }, { once: true })
        document.body.append(frame)
      })
    }
    postMessage(data) {
      this.window.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
