// Prepares a realm: the function `use`, the variables of the host, and what Sling's scripts expect beside them.
// `host` has the functions of `host_function.rs`. Values from the host come encoded: primitives as they are, anything
// else as [kind, payload].
(function (host) {
    "use strict";
    const HOST_OBJECT = 0, LIST = 1, MAP = 2, DATE = 3, SCRIPT_VALUE = 4;
    const { apply, construct } = Reflect;
    const { defineProperty, getPrototypeOf, keys, setPrototypeOf } = Object;
    const { isArray } = Array;
    const RealDate = Date;
    const getTime = RealDate.prototype.getTime;
    const define = (object, name, value) =>
        defineProperty(object, name, { value, writable: true, configurable: true, enumerable: false });

    // ---- Values of the host ----

    // Targets of the proxies that stand for objects of the host, by proxy.
    const targets = new WeakMap();

    const traps = {
        get(target, key) {
            const { id } = target;
            if (key === Symbol.toPrimitive) return () => decode(host.primitive(id));
            if (key === Symbol.iterator) {
                const items = decode(host.items(id));
                return items === undefined ? undefined : () => items[Symbol.iterator]();
            }
            if (typeof key === "symbol") return undefined;
            if (key === "toString") return () => String(decode(host.primitive(id)));
            if (host.isMethod(id, key)) return (...values) => decode(host.call(id, key, values.map(encode)));
            return decode(host.read(id, key));
        },
        has(target, key) {
            return typeof key === "string" && host.has(target.id, key);
        },
        ownKeys(target) {
            return host.keys(target.id);
        },
        getOwnPropertyDescriptor(target, key) {
            if (typeof key === "symbol" || !host.has(target.id, key)) return undefined;
            return { value: decode(host.read(target.id, key)), enumerable: true, configurable: true, writable: false };
        },
        set: () => false,
        defineProperty: () => false,
        deleteProperty: () => false,
        setPrototypeOf: () => false,
        preventExtensions: () => false,
    };

    function wrap(id) {
        const target = setPrototypeOf({ id }, null);
        const proxy = new Proxy(target, traps);
        targets.set(proxy, target);
        return proxy;
    }

    // Lists of the host are arrays that also have the methods of Java's collections and iterators.
    const listMethods = setPrototypeOf({
        size() { return this.length; },
        isEmpty() { return this.length === 0; },
        get(index) { return this[index]; },
        contains(item) { return this.includes(item); },
        toArray() { return [...this]; },
        iterator() {
            let next = 0;
            return { hasNext: () => next < this.length, next: () => this[next++] };
        },
    }, Array.prototype);
    const positions = new WeakMap();
    define(listMethods, "hasNext", function () { return (positions.get(this) || 0) < this.length; });
    define(listMethods, "next", function () {
        const next = positions.get(this) || 0;
        positions.set(this, next + 1);
        return this[next];
    });
    for (const name of keys(listMethods)) define(listMethods, name, listMethods[name]);

    function decode(value) {
        if (!isArray(value)) return value;
        const payload = value[1];
        switch (value[0]) {
            case HOST_OBJECT: return wrap(payload);
            case LIST: return setPrototypeOf(payload.map(decode), listMethods);
            case MAP: {
                const map = {};
                for (let at = 0; at < payload.length; at += 2) {
                    defineProperty(map, payload[at], {
                        value: decode(payload[at + 1]), writable: true, configurable: true, enumerable: true,
                    });
                }
                return map;
            }
            case DATE: return new RealDate(payload);
            default: return payload;
        }
    }

    // Returns what stands for an object outside the engine: an object of the host, a date, a boxed primitive.
    function inspect(value) {
        const target = targets.get(value);
        if (target !== undefined) return [HOST_OBJECT, target.id];
        if (value instanceof RealDate) return [DATE, apply(getTime, value, [])];
        if (value instanceof String || value instanceof Number || value instanceof Boolean) {
            return [SCRIPT_VALUE, value.valueOf()];
        }
        return undefined;
    }

    // Encodes an argument of a method of the host; objects of scripts have no meaning there.
    function encode(value) {
        if (value === null || (typeof value !== "object" && typeof value !== "function")) {
            return typeof value === "symbol" || typeof value === "bigint" ? undefined : value;
        }
        const known = inspect(value);
        if (known !== undefined && known[0] !== SCRIPT_VALUE) return known;
        if (isArray(value)) return [LIST, value.map(encode)];
        return known === undefined ? undefined : known[1];
    }

    // ---- Operations of the engine ----

    // Most operations on lists and texts never ask whether to go on: long ones are counted before they begin.
    const LONG = 256;
    function countOperations(prototype, short, countItems) {
        for (const name of Object.getOwnPropertyNames(prototype)) {
            const operation = prototype[name];
            if (typeof operation !== "function" || short.includes(name)) continue;
            define(prototype, name, {
                [name](...values) {
                    if (this != null) {
                        const items = countItems(this, values);
                        if (items > LONG) host.count(items);
                    }
                    return apply(operation, this, values);
                },
            }[name]);
        }
    }
    const lengthOf = value => (isArray(value) || typeof value === "string" ? value.length : 0);
    const NESTED = 1000;
    countOperations(Array.prototype, ["constructor", "push", "pop", "at", "keys", "values", "entries"],
        (list, values) => {
            let items = list.length;
            for (const value of values) items += lengthOf(value);
            // The lists within a list, which `flat` and `join` visit.
            for (let at = 0; at < NESTED && at < list.length; at++) items += lengthOf(list[at]);
            return items;
        });
    // The parts of a text that are compared with another one may be as long as the other one.
    countOperations(String.prototype, ["constructor", "charAt", "charCodeAt", "codePointAt", "at", "toString", "valueOf"],
        (text, values) => text.length * (1 + lengthOf(values[0]) / 32) + text.length * lengthOf(values[1]) / 32);

    // ---- The clock, random numbers, and texts as programs ----

    const now = () => host.now();
    const dateTraps = {
        construct: (target, values, newTarget) => construct(target, values.length ? values : [now()], newTarget),
        apply: () => new RealDate(now()).toString(),
    };
    define(RealDate, "now", now);
    define(globalThis, "Date", new Proxy(RealDate, dateTraps));
    define(RealDate.prototype, "constructor", globalThis.Date);

    let state = host.seed() | 1;
    define(Math, "random", () => {
        state ^= state << 13;
        state ^= state >>> 17;
        state ^= state << 5;
        return (state >>> 0) / 4294967296;
    });

    const refuse = () => { throw new EvalError("a text cannot be run as a script"); };
    for (const example of [function () { }, async function () { }, function* () { }, async function* () { }]) {
        const prototype = getPrototypeOf(example);
        const refusing = new Proxy(prototype.constructor, { construct: refuse, apply: refuse });
        if (prototype === Function.prototype) define(globalThis, "Function", refusing);
        defineProperty(prototype, "constructor", { value: refusing });
    }
    delete globalThis.eval;

    // ---- Q, the library of promises that scripts of AEM load ----

    const Q = value => Promise.resolve(value);
    Object.assign(Q, {
        defer() {
            const deferred = {};
            deferred.promise = new Promise((resolve, reject) => Object.assign(deferred, { resolve, reject }));
            return deferred;
        },
        all: promises => Promise.all(promises),
        reject: reason => Promise.reject(reason),
        resolve: value => Promise.resolve(value),
        when: (value, done, failed) => Promise.resolve(value).then(done, failed),
    });
    define(Promise.prototype, "fail", Promise.prototype.catch);
    define(Promise.prototype, "fin", Promise.prototype.finally);
    const Q_PATH = /^(\/libs\/)?(sling\/)?sightly\/js\/3rd-party\/q\.js$/;

    // ---- Variables ----

    function defineLazily(object, name, make) {
        defineProperty(object, name, {
            configurable: true,
            enumerable: true,
            get() {
                const value = make();
                define(object, name, value);
                return value;
            },
            set(value) { define(object, name, value); },
        });
    }

    const names = ["properties", "resource", "request", "slingRequest", "currentPage", "resourcePage", "pageProperties",
        "inheritedPageProperties", "currentStyle", "currentDesign", "currentContentPolicyProperties", "component",
        "caconfig", "wcmmode"];
    for (const name of names) defineLazily(globalThis, name, () => decode(host.global(name.toLowerCase())));

    class Resource {
        constructor(nativeResource) {
            define(this, "nativeResource", nativeResource);
            this.path = nativeResource.path;
            defineLazily(this, "properties", () => nativeResource.valueMap);
        }
        get name() { return this.path.slice(this.path.lastIndexOf("/") + 1); }
        get resourceType() { return this.nativeResource.resourceType; }
        getParent() {
            const parent = this.nativeResource.parent;
            return parent ? Promise.resolve(new Resource(parent)) : null;
        }
        getChildren() {
            return Promise.resolve(Array.from(this.nativeResource.children, child => new Resource(child)));
        }
        resolve(path) {
            const absolute = String(path).startsWith("/") ? String(path) : this.path + "/" + path;
            const found = decode(host.resource(absolute));
            return found ? Promise.resolve(new Resource(found))
                : Promise.reject(new Error("there is no resource at `" + absolute + "`"));
        }
    }

    const sightly = {};
    defineLazily(sightly, "resource", () => new Resource(globalThis.resource));
    defineLazily(sightly, "properties", () => sightly.resource.properties);
    defineLazily(sightly, "request", () => globalThis.request);
    for (const name of ["granite", "sightly", "sly"]) define(globalThis, name, sightly);

    const LEVELS = { trace: 0, debug: 0, log: 1, info: 1, warn: 2, error: 3 };
    function logger(path) {
        const log = {};
        for (const name of keys(LEVELS)) {
            log[name] = (message, ...values) => {
                const text = String(message).replace(/\{\}/g, mark => (values.length ? String(values.shift()) : mark));
                host.log(LEVELS[name], path, [text, ...values.map(String)].join(" "));
            };
            log["is" + name[0].toUpperCase() + name.slice(1) + "Enabled"] = () => LEVELS[name] > 0;
        }
        return log;
    }

    // ---- Scripts ----

    const running = [];

    function load(name, from) {
        if (Q_PATH.test(name)) return Q;
        if (!name.endsWith(".js")) throw new Error("only scripts with the suffix `.js` can be used: `" + name + "`");
        const found = host.load(name, from);
        if (found === undefined) throw new Error("there is no script `" + name + "`");
        if (running.includes(found[0])) throw new Error("the script `" + found[0] + "` depends on itself");
        return run(found[0], found[1], {});
    }

    // Runs a script; as in Sling, the functions passed to `use` are called after the rest of the script.
    function run(path, body, options) {
        const calls = [];
        let isBodyDone = false;
        function use(...values) {
            const callback = values[values.length > 1 ? 1 : 0];
            if (typeof callback !== "function") throw new TypeError("`use` takes a function");
            const names = values.length < 2 ? [] : isArray(values[0]) ? values[0] : [values[0]];
            const call = () => callback.apply(options, names.map(name => load(String(name), path)));
            if (isBodyDone) return call();
            calls.push(call);
        }
        const module = { exports: {} };
        const { exports } = module;
        const log = logger(path);
        running.push(path);
        try {
            body.call(globalThis, use, log, log, module, exports);
            isBodyDone = true;
            let result;
            for (const call of calls) result = call();
            if (result == null && (module.exports !== exports || keys(exports).length > 0)) result = module.exports;
            return result;
        } finally {
            running.pop();
        }
    }

    return {
        inspect,
        run(path, body, options) {
            return run(path, body, decode(options));
        },
        toText: value => String(value).toWellFormed(),
        describe(error) {
            if (typeof error !== "object" || error === null) return [String(error), ""];
            return [error.name && error.message ? error.name + ": " + error.message : String(error), String(error.stack || "")];
        },
    };
})
