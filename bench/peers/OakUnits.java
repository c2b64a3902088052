import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import javax.jcr.Node;
import javax.jcr.NodeIterator;
import javax.jcr.Property;
import javax.jcr.PropertyIterator;
import javax.jcr.Repository;
import javax.jcr.Session;
import javax.jcr.SimpleCredentials;
import org.apache.jackrabbit.oak.Oak;
import org.apache.jackrabbit.oak.jcr.Jcr;
import org.apache.jackrabbit.oak.segment.SegmentNodeStoreBuilders;
import org.apache.jackrabbit.oak.segment.file.FileStore;
import org.apache.jackrabbit.oak.segment.file.FileStoreBuilder;

/**
 * Units of work on Apache Oak's segment store, for the row S9 of the bench.
 *
 * Arguments: an empty folder, and the number of pages. Prints `ready`; then each line `unit milliseconds` on standard
 * input is answered by `operations seconds`. A unit whose name ends with `durable` calls the store's flush after each
 * save, as Oak's own save leaves that to a thread that runs every five seconds.
 */
public final class OakUnits {
    private static final int COMPONENTS = 8;
    private static final int CHILDREN = 10_000;
    private static final int SECTION = 100;

    private final Repository repository;
    private final FileStore store;
    private final int pages;
    private final Session session;
    private final Random random = new Random(1);
    private final AtomicInteger names = new AtomicInteger();

    interface Step {
        int run() throws Exception;
    }

    private OakUnits(File folder, int pages) throws Exception {
        this.pages = pages;
        store = FileStoreBuilder.fileStoreBuilder(folder).withMaxFileSize(256).withMemoryMapping(true).build();
        repository = new Jcr(new Oak(SegmentNodeStoreBuilders.builder(store).build())).createRepository();
        session = login();
        Node root = session.getRootNode().addNode("bench", "oak:Unstructured");
        for (int page = 0; page < pages; page++) {
            if (page % SECTION == 0) {
                root.addNode("f" + page / SECTION, "oak:Unstructured");
                session.save();
            }
            addPage(root.getNode("f" + page / SECTION), page);
        }
        Node many = session.getRootNode().addNode("many", "oak:Unstructured");
        for (int child = 0; child < CHILDREN; child++) {
            many.addNode("n" + child, "nt:unstructured").setProperty("title", "Child " + child);
        }
        session.getRootNode().addNode("made", "oak:Unstructured");
        session.getRootNode().addNode("moved", "oak:Unstructured");
        session.save();
        store.flush();
    }

    private Session login() throws Exception {
        return repository.login(new SimpleCredentials("admin", "admin".toCharArray()));
    }

    private static void addPage(Node parent, int number) throws Exception {
        Node content = parent.addNode("p" + number, "nt:unstructured").addNode("content", "nt:unstructured");
        content.setProperty("title", "Page " + number);
        content.setProperty("template", "/conf/bench/page");
        Node components = content.addNode("par", "nt:unstructured");
        for (int component = 0; component < COMPONENTS; component++) {
            Node text = components.addNode("text" + component, "nt:unstructured");
            text.setProperty("type", "bench/text");
            text.setProperty("text", "Lorem ipsum dolor sit amet " + component + " on page " + number);
        }
    }

    private String content(int page) {
        return "/bench/f" + page / SECTION + "/p" + page + "/content";
    }

    /** Runs a step again and again until time is up; gives operations and seconds. */
    private String repeat(long millis, int threads, java.util.concurrent.Callable<Step> make) throws Exception {
        long begin = System.nanoTime();
        long end = begin + millis * 1_000_000L;
        AtomicLong operations = new AtomicLong();
        ExecutorService executor = Executors.newFixedThreadPool(threads);
        List<Future<?>> running = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            Step step = make.call();
            running.add(executor.submit(() -> {
                do {
                    operations.addAndGet(step.run());
                } while (System.nanoTime() < end);
                return null;
            }));
        }
        for (Future<?> one : running) {
            one.get();
        }
        executor.shutdown();
        return String.format(Locale.ROOT, "%d %.6f", operations.get(), (System.nanoTime() - begin) / 1e9);
    }

    private String run(String unit, long millis) throws Exception {
        switch (unit) {
            case "read_nodes":
                return repeat(millis, 1, () -> () -> {
                    for (int i = 0; i < 100; i++) {
                        session.getNode(content(random.nextInt(pages))).getProperty("title").getString();
                    }
                    return 100;
                });
            case "read_pages":
                return repeat(millis, 1, () -> () -> walk(session.getNode(content(random.nextInt(pages)))));
            case "commit":
                return repeat(millis, 1, () -> commits(false));
            case "commit_durable":
                return repeat(millis, 1, () -> commits(true));
            case "commit_64_durable":
                return repeat(millis, 64, () -> commits(true));
            case "create_durable":
                return repeat(millis, 1, () -> () -> create());
            case "list":
                return repeat(millis, 1, () -> () -> list());
            case "move_durable":
                return repeat(millis, 1, () -> () -> move());
            default:
                throw new IllegalArgumentException(unit);
        }
    }

    private Step commits(boolean durable) throws Exception {
        Session own = login();
        Node node = own.getRootNode().getNode("made").addNode("c" + names.incrementAndGet(), "nt:unstructured");
        own.save();
        long[] count = {0};
        return () -> {
            node.setProperty("count", ++count[0]);
            own.save();
            if (durable) {
                store.flush();
            }
            return 1;
        };
    }

    private int create() throws Exception {
        String name = "m" + names.incrementAndGet();
        Node parent = session.getRootNode().getNode("made").addNode(name, "oak:Unstructured");
        for (int child = 0; child < CHILDREN; child++) {
            parent.addNode("n" + child, "nt:unstructured");
        }
        session.save();
        store.flush();
        return CHILDREN;
    }

    private int list() throws Exception {
        int titles = 0;
        for (NodeIterator children = session.getNode("/many").getNodes(); children.hasNext(); ) {
            titles += children.nextNode().getProperty("title").getString().isEmpty() ? 0 : 1;
        }
        return titles;
    }

    /** Moves a section of pages away and back: two moves. */
    private int move() throws Exception {
        session.move("/bench/f0", "/moved/f0");
        session.save();
        store.flush();
        session.move("/moved/f0", "/bench/f0");
        session.save();
        store.flush();
        return 2;
    }

    private static int walk(Node node) throws Exception {
        int count = 1;
        for (PropertyIterator properties = node.getProperties(); properties.hasNext(); ) {
            Property property = properties.nextProperty();
            if (!property.isMultiple()) {
                property.getString();
            }
        }
        for (NodeIterator children = node.getNodes(); children.hasNext(); ) {
            count += walk(children.nextNode());
        }
        return count;
    }

    public static void main(String[] arguments) throws Exception {
        OakUnits units = new OakUnits(new File(arguments[0]), Integer.parseInt(arguments[1]));
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(units.run(words[0], Long.parseLong(words[1])));
            System.out.flush();
        }
        units.store.close();
        System.exit(0);
    }
}
