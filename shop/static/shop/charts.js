// Draw the charts of the overview with Chart.js, which unfold loads on each page of the admin.

// The figures of a chart are JSON in `data-chart` of its canvas. For a curve, they are the units `sold` and `left` at
// moments from the opening of the sale, which was `seconds` ago, until now. For bars, they are the `orders` placed in
// each of the last seconds.

const charts = new Map(); // by the id of the canvas

function time(seconds) {
  const days = Math.floor(seconds / 86_400);
  return (days ? `${days} d ` : "") + new Date((seconds % 86_400) * 1000).toISOString().slice(11, 19);
}

function datasets(canvas, { sold, left, orders }) {
  const color = getComputedStyle(canvas).color; // differs between the light and the dark theme
  if (orders) return [{ label: "orders", data: orders, backgroundColor: color }];
  const pale = color.replace("rgb(", "rgba(").replace(")", ", 0.2)");
  return [
    { label: "sold", data: sold, fill: true, backgroundColor: pale, borderColor: pale },
    { label: "left", data: left, backgroundColor: color, borderColor: color },
  ];
}

function labels({ sold, seconds, orders }) {
  if (orders) return orders.map((_, at) => `${orders.length - at} s ago`);
  return sold.map((_, at) => `${time((seconds * at) / (sold.length - 1))} after the opening`);
}

function options(canvas, figures) {
  const { color } = getComputedStyle(canvas);
  return {
    animation: false,
    maintainAspectRatio: false,
    interaction: { mode: "index", intersect: false },
    elements: { point: { radius: 0 }, line: { borderWidth: 2 } },
    plugins: { legend: { display: false } },
    scales: {
      x: { display: false },
      y: {
        afterFit: (scale) => (scale.width = 40), // so that the curve and the bars begin at the same place
        beginAtZero: true,
        grid: { color: "#8883" },
        ticks: { color, maxTicksLimit: figures.orders ? 2 : 3, precision: 0 },
      },
    },
  };
}

// Put the charts that are drawn already into the new content, so that they stay as they are while the pointer is on them.
export function keepCharts(content) {
  for (const canvas of content.querySelectorAll("canvas[data-chart]")) {
    const kept = charts.get(canvas.id)?.canvas;
    if (!kept) continue;
    kept.dataset.chart = canvas.dataset.chart;
    kept.setAttribute("aria-label", canvas.getAttribute("aria-label"));
    canvas.parentElement.replaceWith(kept.parentElement); // Chart.js watches the size of the parent.
  }
}

// Draw all charts of the page with their present figures, and forget those that are no longer on the page.
export function drawCharts() {
  for (const [id, chart] of charts) {
    if (chart.canvas.isConnected) continue;
    chart.destroy();
    charts.delete(id);
  }
  for (const canvas of document.querySelectorAll("canvas[data-chart]")) {
    const figures = JSON.parse(canvas.dataset.chart);
    const drawn = {
      data: { labels: labels(figures), datasets: datasets(canvas, figures) },
      options: options(canvas, figures),
    };
    const chart = charts.get(canvas.id);
    if (chart) Object.assign(chart, drawn).update();
    else charts.set(canvas.id, new Chart(canvas, { type: canvas.dataset.type, ...drawn }));
  }
}
