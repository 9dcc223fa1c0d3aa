// Draws the attention maps and features of a network at the step that a slider selects. The data are JSON inside the figure, with arrays of
// bytes in base64. In print, and if scripts do not run, figures of a few steps replace the slider.
function slider(figure) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const range = figure.querySelector("input"), output = figure.querySelector("output");
  const [back, on, play] = ["back", "on", "play"].map((name) => figure.querySelector(`[data-${name}]`));
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const draw = [
    data.attention && attention(figure.querySelector(".maps"), data.attention),
    data.features && plane(figure.querySelector(".plane"), data.features),
  ];
  let running = 0;

  function show(index) {
    const frame = Math.max(0, Math.min(data.captions.length - 1, index));
    output.setAttribute("aria-live", running || document.activeElement === range ? "off" : "polite"); // screen readers announce the value of a focused slider themselves
    range.value = frame;
    range.setAttribute("aria-valuetext", data.captions[frame]);
    output.textContent = data.captions[frame];
    back.setAttribute("aria-disabled", frame === 0);
    on.setAttribute("aria-disabled", frame === data.captions.length - 1);
    for (const part of draw) part?.(frame);
  }

  function pause() {
    clearInterval(running);
    running = 0;
    play.textContent = "Play";
  }

  function start() {
    if (range.valueAsNumber === data.captions.length - 1) show(0);
    play.textContent = "Pause";
    running = setInterval(() => {
      show(range.valueAsNumber + 1);
      if (range.valueAsNumber === data.captions.length - 1) pause();
    }, 900);
  }

  const step = (by) => (pause(), show(range.valueAsNumber + by));
  back.addEventListener("click", () => step(-1));
  on.addEventListener("click", () => step(1));
  play.addEventListener("click", () => (running ? pause() : start()));
  range.addEventListener("input", () => step(0));
  const quiet = () => (pause(), (play.hidden = still.matches));
  still.addEventListener("change", quiet);
  quiet();
  figure.hidden = false;
  show(data.captions.length - 1);
}

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// Lays out one row per image (or sequence): the image, then one map per layer. Returns a function that draws a frame.
function attention(place, data) {
  const heat = bytes(data.heat), [height, width] = data.shape, [rows, columns] = data.grid, layers = data.layers.length;
  const ink = data.ink && bytes(data.ink), inputs = data.inputs && bytes(data.inputs), canvases = [];
  const label = (text) => Object.assign(document.createElement("span"), { textContent: text });
  const canvas = () => Object.assign(document.createElement("canvas"), { height, width });
  place.style.setProperty("--columns", layers + (inputs ? 1 : 0));
  if (inputs) place.append(label("input"));
  place.append(...data.layers.map((layer) => label(`layer ${layer}`)));
  for (let image = 0; image < data.images; image++) {
    if (inputs) {
      const picture = canvas();
      place.append(picture);
      paint(picture, (pixel) => inputs.subarray(3 * (image * height * width + pixel), 3 * (image * height * width + pixel) + 3));
    }
    canvases.push(data.layers.map(() => place.appendChild(canvas())));
  }
  return (frame) => {
    for (let image = 0; image < data.images; image++)
      for (let layer = 0; layer < layers; layer++) {
        // heat has the shape [frame, layer, image, row, column]; a tint is chosen from 64, hence 8 bits are reduced to 6.
        const start = ((frame * layers + layer) * data.images + image) * rows * columns;
        paint(canvases[image][layer], (pixel) => {
          const row = Math.floor((Math.floor(pixel / width) * rows) / height), column = Math.floor(((pixel % width) * columns) / width);
          const tint = data.tints[heat[start + row * columns + column] >> 2];
          const dark = ink ? 1 - (0.6 * ink[image * height * width + pixel]) / 255 : 1;
          return tint.map((part) => part * dark);
        });
      }
  };
}

function paint(canvas, colour) {
  const context = canvas.getContext("2d"), picture = context.createImageData(canvas.width, canvas.height);
  for (let pixel = 0; pixel < canvas.width * canvas.height; pixel++) picture.data.set([...colour(pixel), 255], 4 * pixel);
  context.putImageData(picture, 0, 0);
}

// Adds points that move in a fixed plane, and the number of each class at the median of its points. Returns a function that draws a frame.
function plane(place, data) {
  const make = (name, set) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(set)) made.setAttribute(key, value);
    return made;
  };
  const points = bytes(data.points), svg = make("svg", { viewBox: "-14 -14 283 283" });
  const dots = data.labels.map((label) => make("circle", { r: 2.2, fill: data.tints[data.classes.indexOf(label) % data.tints.length] }));
  const names = data.classes.map((label) => make("text", {}));
  names.forEach((name, i) => (name.textContent = data.classes[i]));
  svg.append(...dots, ...names);
  place.append(svg);
  const all = [...dots, ...names];
  return (frame) =>
    all.forEach((mark, i) => {
      const start = 2 * (frame * all.length + i); // points has the shape [frame, mark, 2]; SVG's y axis points down
      mark.style.transform = `translate(${points[start]}px, ${255 - points[start + 1]}px)`;
    });
}
