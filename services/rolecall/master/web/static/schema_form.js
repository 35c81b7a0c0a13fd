// A form from a JSON schema, as pydantic writes it. Fields that the user leaves empty are left out of the value.
"use strict";

const SchemaForm = (() => {
  let count = 0;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== undefined && value !== null) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // Names in backticks become code.
  const withCode = (text) => text.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
  const titleOf = (name) => name.replace(/_s$/, " (s)").replaceAll("_", " ");
  // The title of an object is the name of its class.
  const wordsOf = (title) => title.replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase();
  const typeOf = (value) => (value === null ? "null" : Array.isArray(value) ? "array" : typeof value);
  const KINDS = { array: "list", string: "text", integer: "whole number", boolean: "true or false", object: "names and values" };
  const shortText = (value) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return text.length > 48 ? `${text.slice(0, 47)}…` : text;
  };

  class Form {
    constructor(root, onChange) {
      this.definitions = root.$defs || {};
      this.onChange = onChange;
      // Paths are functions, because those of list items change when an item before them is removed.
      this.places = new Map();
      this.labels = new Map();
      this.checks = [];
    }

    // Errors that the value can't show, such as a name that occurs twice.
    findErrors() {
      return this.checks.flatMap((check) => check());
    }

    // Name an input after its path, now and whenever items of a list change their numbers.
    labeled(input, text) {
      this.labels.set(input, text);
      input.setAttribute("aria-label", text());
    }

    renumber() {
      for (const [input, text] of this.labels) {
        if (input.isConnected) input.setAttribute("aria-label", text());
        else this.labels.delete(input);
      }
      for (const box of this.places.keys()) if (!box.isConnected) this.places.delete(box);
    }

    resolve(schema) {
      const { $ref, allOf, ...own } = schema;
      if ($ref) return this.resolve({ ...this.definitions[$ref.split("/").at(-1)], ...own });
      if (allOf && allOf.length === 1) return this.resolve({ ...allOf[0], ...own });
      return schema;
    }

    // A field: its element, and a function that returns its value, undefined if it is left empty.
    field(name, given, path, value, isRequired) {
      const schema = this.resolve(given);
      const body = this.control(schema, path, value, isRequired);
      const help = schema.description ? element("p", { class: "help" }, ...withCode(schema.description)) : "";
      const wrong = element("p", { class: "wrong", hidden: "" });
      const label = body.isGroup
        ? element("legend", {}, titleOf(name))
        : element("label", { for: body.id }, titleOf(name), isRequired && schema.default === undefined ? " *" : "");
      const box = element(body.isGroup ? "fieldset" : "div", { class: "field" }, label, body.element, help, wrong);
      this.places.set(box, path);
      return { element: box, read: body.read };
    }

    control(schema, path, value, isRequired) {
      const variants = (schema.anyOf || schema.oneOf || []).map((one) => this.resolve(one));
      const present = variants.filter((one) => one.type !== "null");
      if (present.length === 1) return this.control({ ...schema, anyOf: undefined, oneOf: undefined, ...present[0] }, path, value ?? undefined, false);
      if (present.length > 1) return this.choice(schema, present, path, value, isRequired);
      if (schema.const !== undefined) return this.constant(schema);
      if (schema.enum) return this.selection(schema, value);
      if (schema.type === "boolean") return this.selection({ ...schema, enum: [true, false] }, value);
      if (schema.type === "array" && schema.prefixItems) return this.json(schema, value);
      if (schema.type === "array") return this.list(schema, path, value);
      if (schema.type === "object" && schema.properties) return this.object(schema, path, value, isRequired);
      if (schema.type === "object" && schema.additionalProperties?.type === "string") return this.map(schema, path, value, isRequired);
      if (["integer", "number", "string"].includes(schema.type)) return this.text(schema, value);
      return this.json(schema, value);
    }

    listen(input) {
      input.addEventListener("input", this.onChange);
      return input;
    }

    constant(schema) {
      const id = `field-${(count += 1)}`;
      return { id, element: element("output", { id }, String(schema.const)), read: () => schema.const };
    }

    text(schema, value) {
      const id = `field-${(count += 1)}`;
      const isNumber = schema.type !== "string";
      const bounds = isNumber ? { min: schema.minimum ?? schema.exclusiveMinimum, max: schema.maximum ?? schema.exclusiveMaximum } : {};
      const input = element("input", {
        id,
        type: isNumber ? "number" : "text",
        step: schema.type === "integer" ? "1" : isNumber ? "any" : undefined,
        ...bounds,
        maxlength: schema.maxLength,
        placeholder: schema.default !== undefined && schema.default !== null ? shortText(schema.default) : schema.examples ? `such as ${shortText(schema.examples[0])}` : undefined,
        value: value === undefined || value === null ? undefined : value,
      });
      const empty = value === "" ? "" : undefined;
      const read = () => (input.value === "" ? empty : isNumber ? Number(input.value) : input.value);
      return { id, element: this.listen(input), read };
    }

    selection(schema, value) {
      const id = `field-${(count += 1)}`;
      const fallback = schema.default === undefined ? "choose" : schema.default === null ? "default" : `default: ${shortText(schema.default)}`;
      const input = element("select", { id }, new Option(fallback, ""), ...schema.enum.map((one) => new Option(String(one), JSON.stringify(one))));
      if (value !== undefined && value !== null) input.value = JSON.stringify(value);
      return { id, element: this.listen(input), read: () => (input.value === "" ? undefined : JSON.parse(input.value)) };
    }

    json(schema, value) {
      const id = `field-${(count += 1)}`;
      const input = element("textarea", { id, rows: "2", spellcheck: "false", placeholder: schema.default !== undefined ? JSON.stringify(schema.default) : "JSON" });
      if (value !== undefined && value !== null) input.value = JSON.stringify(value);
      const read = () => {
        if (!input.value.trim()) return undefined;
        try {
          return JSON.parse(input.value);
        } catch {
          return input.value;
        }
      };
      return { id, element: this.listen(input), read };
    }

    // The element of `rows`, which the user can add and remove. `make` makes a row from its start value: its elements,
    // the labels of its inputs after the number of the row, its path, and how it is read.
    rowsOf(rows, path, starts, make) {
      const place = element("div");
      const add = element("button", { type: "button" }, "Add");
      const append = (start) => {
        const row = make(start);
        rows.push(row);
        const title = () => `${path()} ${rows.indexOf(row) + 1}`;
        const remove = element("button", { type: "button" }, "×");
        const box = element("div", { class: `${row.elements.length > 1 ? "pair" : "item"} field` }, ...row.elements, remove);
        const inputs = box.querySelectorAll("input, select, textarea");
        // A constant has no input.
        row.labels.forEach((label, number) => inputs[number] && this.labeled(inputs[number], () => title() + label));
        this.labeled(remove, () => `Remove ${title()}`);
        this.places.set(box, row.path);
        remove.addEventListener("click", () => {
          rows.splice(rows.indexOf(row), 1);
          box.remove();
          this.renumber();
          this.onChange();
          add.focus();
        });
        place.append(box);
      };
      starts.forEach(append);
      add.addEventListener("click", () => {
        append(undefined);
        this.onChange();
        place.lastChild.querySelector("input, select, textarea")?.focus();
      });
      return element("div", {}, place, add);
    }

    list(schema, path, value) {
      const rows = [];
      const isFilled = (row) => row.read() !== undefined;
      const make = (start) => {
        const row = { read: () => undefined };
        // With the number of the item in the value, which lacks the items that are left empty; null for those.
        row.path = () => `${path()}.${isFilled(row) ? rows.slice(0, rows.indexOf(row)).filter(isFilled).length : null}`;
        const item = this.control(this.resolve(schema.items || {}), row.path, start, true);
        return Object.assign(row, { elements: [item.element], labels: item.isGroup ? [] : [""], read: item.read });
      };
      const box = this.rowsOf(rows, path, Array.isArray(value) ? value : [], make);
      const read = () => (rows.some(isFilled) || Array.isArray(value) ? rows.filter(isFilled).map((row) => row.read()) : undefined);
      return { isGroup: true, element: box, read };
    }

    // An object with names that the user chooses and texts as values: a row for each name. Empty rows are left out.
    map(schema, path, value, isRequired) {
      const rows = [];
      const make = (start) => {
        const input = (placeholder, { maxLength } = {}, given = "") => this.listen(element("input", { type: "text", placeholder, maxlength: maxLength, value: given }));
        const name = input("name", schema.propertyNames, start?.[0]);
        const text = input("value", schema.additionalProperties, start?.[1]);
        const read = () => (name.value || text.value ? [name.value, text.value] : undefined);
        return { elements: [name, text], labels: [" name", " value"], path: () => `${path()}.${name.value}`, read };
      };
      const box = this.rowsOf(rows, path, Object.entries(value || {}), make);
      const entries = () => rows.map((row) => row.read()).filter((one) => one !== undefined);
      this.checks.push(() => {
        if (!box.isConnected) return []; // Its row is removed, or another form of the value is chosen.
        const names = entries().map(([name]) => name);
        const repeated = new Set(names.filter((name, place) => names.indexOf(name) < place));
        return [...repeated].map((name) => ({ field: `${path()}.${name}`, message: `another row has the name '${name}'` }));
      });
      const read = () => (entries().length || value || isRequired ? Object.fromEntries(entries()) : undefined);
      return { isGroup: true, element: box, read };
    }

    object(schema, path, value, isRequired) {
      const required = new Set(schema.required || []);
      const names = Object.keys(schema.properties);
      const fields = new Map();
      const make = (name) => {
        const field = this.field(name, schema.properties[name], () => (path() ? `${path()}.${name}` : name), value?.[name], required.has(name));
        fields.set(name, field);
        return field.element;
      };
      const isShown = (name) => required.has(name) || value?.[name] !== undefined;
      const shown = names.filter(isShown).map(make);
      const others = names.filter((name) => !isShown(name)).map(make);
      const box = element("div", {}, ...shown);
      if (others.length && (shown.length || path())) {
        box.append(element("details", { class: "optional" }, element("summary", {}, `${others.length} more with defaults`), ...others));
      } else box.append(...others);
      const read = () => {
        const found = {};
        for (const name of names) {
          const one = fields.get(name).read();
          if (one !== undefined) found[name] = one;
        }
        if (!Object.keys(found).length && !isRequired) return undefined;
        const isEmpty = Object.keys(found).every((name) => this.resolve(schema.properties[name]).const !== undefined);
        return isEmpty && !isRequired ? undefined : found;
      };
      return { isGroup: true, element: box, read };
    }

    // A choice between several forms of a value, such as a number or an object, or one of several optimizers.
    choice(schema, variants, path, value, isRequired) {
      const id = `field-${(count += 1)}`;
      const constantOf = (one) => Object.entries(one.properties || {}).find(([, property]) => this.resolve(property).const !== undefined);
      const nameOf = (one) => {
        const constant = constantOf(one);
        if (constant) return String(this.resolve(constant[1]).const);
        return one.enum ? one.enum.join(" or ") : one.const !== undefined ? String(one.const) : one.title && one.properties ? wordsOf(one.title) : KINDS[one.type] || one.type || "value";
      };
      const fits = (one) => {
        const constant = constantOf(one);
        if (constant && typeOf(value) === "object") return value[constant[0]] === this.resolve(constant[1]).const;
        if (one.enum) return one.enum.includes(value);
        if (one.const !== undefined) return one.const === value;
        const type = typeOf(value);
        if (type === "object") return one.type === "object" && Object.keys(value).every((key) => !one.properties || key in one.properties);
        return one.type === type || (type === "number" && ["number", "integer"].includes(one.type));
      };
      const fallback = isRequired && schema.default === undefined ? "choose" : schema.default === undefined || schema.default === null ? "default" : `default: ${shortText(schema.default)}`;
      const input = element("select", { id }, new Option(fallback, ""), ...variants.map((one, place) => new Option(nameOf(one), String(place))));
      const inner = element("div");
      let chosen = null;
      const choose = (start) => {
        chosen = input.value === "" ? null : this.control(variants[Number(input.value)], path, start, true);
        inner.replaceChildren(...(chosen ? [chosen.element] : []));
        if (chosen && !chosen.isGroup) this.labeled(chosen.element, path);
      };
      const found = value === undefined || value === null ? -1 : variants.findIndex(fits);
      if (found >= 0) input.value = String(found);
      choose(value);
      input.addEventListener("input", () => {
        choose(undefined);
        this.onChange();
      });
      return { id, element: element("div", {}, input, inner), read: () => (chosen ? chosen.read() : undefined) };
    }

    // Show the errors of a problem document at their fields. Returns those without a field.
    showErrors(errors) {
      this.renumber();
      const boxes = new Map([...this.places].map(([box, path]) => [path(), box]));
      for (const box of this.places.keys()) {
        delete box.dataset.wrong;
        const wrong = box.querySelector(":scope > .wrong");
        if (wrong) wrong.hidden = true;
      }
      return errors.filter((error) => {
        let path = error.field.replaceAll(/\[(\d+)\]/g, ".$1");
        while (path && !boxes.has(path)) path = path.slice(0, Math.max(0, path.lastIndexOf(".")));
        const box = boxes.get(path);
        if (!box) return true;
        let wrong = box.querySelector(":scope > .wrong");
        if (!wrong) box.append((wrong = element("p", { class: "wrong" })));
        wrong.textContent = error.message + (error.legal ? ` (valid: ${error.legal})` : "");
        wrong.hidden = false;
        box.dataset.wrong = "";
        for (let parent = box.parentElement; parent; parent = parent.parentElement) if (parent.tagName === "DETAILS") parent.open = true;
        return false;
      });
    }
  }

  return { Form, element };
})();
