// A network's attention maps and features at each stored step, drawn from small numbers beside the figure; a slider chooses the step.
// Without this script, and in print, figures of some steps stand in their place.
function film(figure) {
  const told = JSON.parse(figure.querySelector("script").textContent);
  const slider = figure.querySelector("input"), output = figure.querySelector("output");
  const [back, on, play] = ["back", "on", "play"].map((name) => figure.querySelector(`[data-${name}]`));
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const draw = [
    told.attention && attention(figure.querySelector(".maps"), told.attention),
    told.features && plane(figure.querySelector(".plane"), told.features),
  ];
  let running = 0;

  function show(at) {
    const frame = Math.max(0, Math.min(told.captions.length - 1, at));
    output.setAttribute("aria-live", running || document.activeElement === slider ? "off" : "polite"); // the slider tells its own value
    slider.value = frame;
    slider.setAttribute("aria-valuetext", told.captions[frame]);
    output.textContent = told.captions[frame];
    back.setAttribute("aria-disabled", frame === 0);
    on.setAttribute("aria-disabled", frame === told.captions.length - 1);
    for (const part of draw) part?.(frame);
  }

  function pause() {
    clearInterval(running);
    running = 0;
    play.textContent = "Play";
  }

  function start() {
    if (slider.valueAsNumber === told.captions.length - 1) show(0);
    play.textContent = "Pause";
    running = setInterval(() => {
      show(slider.valueAsNumber + 1);
      if (slider.valueAsNumber === told.captions.length - 1) pause();
    }, 900);
  }

  const step = (by) => (pause(), show(slider.valueAsNumber + by));
  back.addEventListener("click", () => step(-1));
  on.addEventListener("click", () => step(1));
  play.addEventListener("click", () => (running ? pause() : start()));
  slider.addEventListener("input", () => step(0));
  const quiet = () => (pause(), (play.hidden = still.matches));
  still.addEventListener("change", quiet);
  quiet();
  figure.hidden = false;
  show(told.captions.length - 1);
}

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// For each image (or sequence) a row: the image, then a map for each layer. Returns what draws a frame.
function attention(place, told) {
  const heat = bytes(told.heat), [height, width] = told.shape, [rows, columns] = told.grid, layers = told.layers.length;
  const ink = told.ink && bytes(told.ink), inputs = told.inputs && bytes(told.inputs), canvases = [];
  const label = (text) => Object.assign(document.createElement("span"), { textContent: text });
  const canvas = () => Object.assign(document.createElement("canvas"), { height, width });
  place.style.setProperty("--columns", layers + (inputs ? 1 : 0));
  if (inputs) place.append(label("input"));
  place.append(...told.layers.map((layer) => label(`layer ${layer}`)));
  for (let image = 0; image < told.images; image++) {
    if (inputs) {
      const seen = canvas();
      place.append(seen);
      paint(seen, (pixel) => inputs.subarray(3 * (image * height * width + pixel), 3 * (image * height * width + pixel) + 3));
    }
    canvases.push(told.layers.map(() => place.appendChild(canvas())));
  }
  return (frame) => {
    for (let image = 0; image < told.images; image++)
      for (let layer = 0; layer < layers; layer++) {
        const start = ((frame * layers + layer) * told.images + image) * rows * columns;
        paint(canvases[image][layer], (pixel) => {
          const row = Math.floor((Math.floor(pixel / width) * rows) / height), column = Math.floor(((pixel % width) * columns) / width);
          const tint = told.tints[heat[start + row * columns + column] >> 2];
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

// Points that move in one fixed plane, and the number of each class in the middle of its points. Returns what draws a frame.
function plane(place, told) {
  const make = (name, set) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(set)) made.setAttribute(key, value);
    return made;
  };
  const points = bytes(told.points), svg = make("svg", { viewBox: "-14 -14 283 283" });
  const dots = told.labels.map((label) => make("circle", { r: 2.2, fill: told.tints[told.classes.indexOf(label) % told.tints.length] }));
  const names = told.classes.map((label) => make("text", {}));
  names.forEach((name, i) => (name.textContent = told.classes[i]));
  svg.append(...dots, ...names);
  place.append(svg);
  const all = [...dots, ...names];
  return (frame) =>
    all.forEach((mark, i) => {
      const at = 2 * (frame * all.length + i);
      mark.style.transform = `translate(${points[at]}px, ${255 - points[at + 1]}px)`;
    });
}
